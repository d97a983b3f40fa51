r"""Mixed tables: frames for teachers, tensors for students."""
