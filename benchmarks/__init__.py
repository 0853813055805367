"""How fast and how true we are, against servers that know the truth. One part a module; the suite imports none."""
