"""What a coordinator does for a federation of real sites."""
