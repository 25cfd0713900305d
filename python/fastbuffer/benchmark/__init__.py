"""fastbuffer measured against plain NumPy on the machine at hand."""
