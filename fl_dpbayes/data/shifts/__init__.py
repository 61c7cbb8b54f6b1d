"""How one site's records differ from another's: acquisition, population, annotation."""
