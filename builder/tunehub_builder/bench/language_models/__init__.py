"""Language models beside other runtimes: tokens a second of prompts and steps, each runtime in a process of its own."""
