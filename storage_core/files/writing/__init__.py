"""The writing of files: a writer, and the pipeline below it to the volumes of a block."""
