"""Language models: from a Hugging Face folder to a module of Relax in MLC-LLM's form, its weights, and a session that
runs it."""
