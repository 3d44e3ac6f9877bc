"""Pictures and pages of what was trained."""
