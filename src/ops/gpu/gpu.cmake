# The GPU backend's files: kernels for nvcc or hipcc, glue for the house compiler, which sees the
# vendor's runtime through compat.h. EYRIE_CUDA compiles all of it into the ops room, EYRIE_HIP the
# part that is not a vendor's own into a library of its own; without either none.cpp takes its place.
set(EYRIE_GPU_KERNELS
    gpu/attention_generic.cu gpu/attention_write.cu gpu/experts.cu gpu/linear_generic.cu
    gpu/plain.cu gpu/prepare.cu gpu/route.cu gpu/route_sort.cu gpu/sample.cu)
set(EYRIE_GPU_CUDA_KERNELS gpu/sm80/attention.cu gpu/sm80/heads.cu)  # PTX of every architecture we build for
set(EYRIE_GPU_SM90_KERNELS  # PTX of Hopper alone: compiled for 90a whatever else is built
    gpu/sm90/mla.cu gpu/sm90/multiply.cu gpu/sm90/multiply_bf16.cu gpu/sm90/multiply_fp8.cu
    gpu/sm90/multiply_fp8_block.cu gpu/sm90/multiply_int4.cu gpu/sm90/multiply_mxfp4.cu
    gpu/sm90/multiply_nvfp4.cu)
set(EYRIE_GPU_GLUE
    gpu/attention.cpp gpu/backend.cpp gpu/cublaslt.cpp gpu/device.cpp gpu/experts.cpp
    gpu/linear.cpp gpu/memory.cpp gpu/plain.cpp gpu/prepare.cpp gpu/trace.cpp)

# Compiles the kernels into objects that target_sources of eyrie_ops takes in.
function(eyrie_cuda_kernels)
  add_library(eyrie_gpu_kernels OBJECT ${EYRIE_GPU_KERNELS} ${EYRIE_GPU_CUDA_KERNELS})
  add_library(eyrie_gpu_sm90_kernels OBJECT ${EYRIE_GPU_SM90_KERNELS})
  set_target_properties(eyrie_gpu_sm90_kernels PROPERTIES CUDA_ARCHITECTURES 90a-real)
  foreach(target eyrie_gpu_kernels eyrie_gpu_sm90_kernels)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    # -lineinfo costs nothing at run time, and profilers and compute-sanitizer name lines by it.
    target_compile_options(${target} PRIVATE
      -O3 -lineinfo -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror)
  endforeach()
endfunction()

# A loop that hipcc does not unroll is slower, not wrong (pass-failed).
# hipcc as a plain tool: CMake's own HIP language wants a ROCm tree that Debian's package is not.
function(eyrie_hip_library target)
  find_program(EYRIE_HIPCC hipcc REQUIRED)
  set(objects)
  # hipcc asks which devices the machine has, and that complains where there are none.
  set(agents ${CMAKE_CURRENT_BINARY_DIR}/gpu/agents)
  file(WRITE ${agents} "gfx90a\n")
  foreach(kernel ${EYRIE_GPU_KERNELS})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${kernel}.hip.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CMAKE_COMMAND} -E env ROCM_TARGET_LST=${agents} ${CCACHE_PROGRAM} ${EYRIE_HIPCC} -x hip --offload-arch=gfx90a
              -O3 -std=c++17 -DEYRIE_HIP -Wall -Wextra -Werror -Wno-pass-failed -I${PROJECT_SOURCE_DIR}/src
              -MD -MF ${object}.d -c ${CMAKE_CURRENT_SOURCE_DIR}/${kernel} -o ${object}
      DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${kernel}
      DEPFILE ${object}.d
      COMMENT "hipcc ${kernel}"
      VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  add_library(${target} STATIC ${EYRIE_GPU_GLUE} gpu/no_sm90.cpp ${objects})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(${target} PRIVATE EYRIE_HIP __HIP_PLATFORM_AMD__
                             "EYRIE_GPU_ARCHITECTURES=\"gfx90a\"")
  target_compile_options(${target} PRIVATE ${EYRIE_WARNINGS})
  target_link_libraries(${target} PUBLIC eyrie_tensor eyrie_formats eyrie_base)
endfunction()
