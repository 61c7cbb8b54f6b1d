"""What a server makes of many sites' statistics: it accepts, warns and lists the results."""
