"""What each aggregation rule does differently from round to round."""
