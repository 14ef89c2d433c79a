# CUDA's compiler and runtime. The runtime is linked statically and the driver is found when the
# program starts, so a program with the GPU backend runs on machines without either.
if(NOT CMAKE_CUDA_COMPILER)
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES bin)
endif()
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "EYRIE_CUDA needs nvcc of CUDA 13: put it on PATH or name it with -DCMAKE_CUDA_COMPILER=")
endif()
set(CMAKE_CUDA_ARCHITECTURES ${EYRIE_CUDA_ARCHITECTURES})
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_CUDA_FLAGS_DEBUG "" CACHE STRING "device code is optimised in every build")
if(CCACHE_PROGRAM)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
enable_language(CUDA)
find_package(CUDAToolkit 13 REQUIRED)

# "sm_80, sm_90a, sm_100 and newer", for the sentence about a device that has none of them.
list(TRANSFORM EYRIE_CUDA_ARCHITECTURES REPLACE "-real$" "" OUTPUT_VARIABLE EYRIE_CUDA_CODE_NAMES)
list(TRANSFORM EYRIE_CUDA_CODE_NAMES PREPEND "sm_")
list(JOIN EYRIE_CUDA_CODE_NAMES ", " EYRIE_CUDA_CODE_NAMES)
