/* Makes MKL, which computes PyTorch's matrix products on a CPU, use its AVX-512 kernels on processors of AMD too.

   Compile: cc -shared -fPIC -o mkl_on_amd.so examples/mkl_on_amd.c
   Run: LD_PRELOAD=$PWD/mkl_on_amd.so fieldlens train --preset glance --out runs/first

   MKL calls this function of its own to ask whether the processor is Intel's. It is not part of the documented
   interface. docs/gpus.md says what the other answer brings. */

int mkl_serv_intel_cpu_true(void) { return 1; }
