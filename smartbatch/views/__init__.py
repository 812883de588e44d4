"""What people see of jobs, lists and processes: views, and how they are rendered."""
