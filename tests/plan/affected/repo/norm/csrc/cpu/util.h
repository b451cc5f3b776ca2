// of the CPU
