# Tests that need a card (tests/gpu/run_all): the conformance tests with the kernels of the library, and
# programs of their own in tests/gpu. CTest: gpu.<name>, label gpu; they skip without a device.
if(NOT PKV_HAVE_CUDA)
    return()
endif()
file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/kernel/test_*.c)
foreach(source ${sources})
    get_filename_component(op ${source} NAME_WE)
    string(REGEX REPLACE "^test_" "" op ${op})
    if(NOT EXISTS ${PROJECT_SOURCE_DIR}/kernels/cuda/${op}.cu)
        continue()
    endif()
    set(program gpu_kernel_${op})
    pkv_add_test_program(${program} ${source} tests/support/kernel_test.c tests/support/kv_case.c
        tests/support/cuda_variant.c)
    target_include_directories(${program} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    # Memory of pkvt_alloc() is the card's too: free() must know.
    target_compile_definitions(${program} PRIVATE PKV_TEST_CUDA=1 PKV_TEST_CARD=1 free=pkvt_cuda_free)
    pkv_add_test(gpu ${source} ${program})
endforeach()
add_executable(gpu_gather tests/gpu/gather.cu)
target_compile_options(gpu_gather PRIVATE --threads 2 -Werror all-warnings)
set_target_properties(gpu_gather PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
