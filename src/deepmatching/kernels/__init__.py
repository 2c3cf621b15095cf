"""Fast versions of the operators behind one door (``registry``), and what the machine offers."""
