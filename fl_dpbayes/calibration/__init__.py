"""How far predicted probabilities can be trusted: additive statistics over sites, errors, scores and intervals."""
