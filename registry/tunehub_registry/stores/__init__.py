"""Where registries lie: a folder, a web site, an S3 bucket; behind one port."""
