"""The live dashboard: questions, panels, and the application that serves them."""
