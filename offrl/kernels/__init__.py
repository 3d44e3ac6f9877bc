"""Code that is there for speed alone, each part beside its plain form."""
