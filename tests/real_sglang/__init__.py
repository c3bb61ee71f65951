"""The tier of tests that runs against real SGLang, on a CPU. Marked ``real_sglang``; see README.md."""
