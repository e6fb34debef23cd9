"""Files in any order of steps, calls, faults and deaths, over real volumes and a real journal."""
