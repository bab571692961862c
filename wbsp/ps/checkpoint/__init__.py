"""What a server keeps of a run, and how it resumes one."""
