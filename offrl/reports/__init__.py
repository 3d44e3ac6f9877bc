"""Reports, pictures and pages about trainings."""
