"""Raw data sets to `Scene`: one module a data set, and the parallel, resumable conversion of a whole folder."""
