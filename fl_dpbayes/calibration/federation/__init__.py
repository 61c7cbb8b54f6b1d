"""What a server makes of the statistics of many sites: checks, warnings and rows of results."""
