"""What a server makes of the statistics of many sites: what it accepts, warns of, and how it lists the results."""
