"""The stroke trial's settings, untouched, on other patients of other hospitals."""
