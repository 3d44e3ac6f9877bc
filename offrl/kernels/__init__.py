"""What is there for speed alone, each beside its plain form."""
