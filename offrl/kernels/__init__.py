"""Code whose only purpose is speed, each part with its plain form."""
