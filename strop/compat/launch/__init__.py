"""Import of launch scripts: which training commands a shell script would run, and the run of each.

`recorder.py` runs the script in bash with recorders in place of all programs; `importer.py` recognizes the commands of
verl, Trinity-RFT, TRL and AzureML among those that were recorded, and reads them.
"""
