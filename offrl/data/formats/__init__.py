"""File formats of demonstrations, one module for each, and conversions between them."""
