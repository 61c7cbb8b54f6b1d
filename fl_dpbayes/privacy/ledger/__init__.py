"""What a site has spent, kept so that no copy, crash or second process can forget it."""
