"""Code whose only reason is speed, each part beside its plain form."""
