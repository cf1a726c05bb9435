# Tests that need a card (tests/gpu/run_all): the conformance tests with the kernels of the library, the
# device's tests and those of its edges, and programs that measure. CTest: gpu.<name>, label gpu; they skip
# without a device. Target gpu_programs builds all that run_all runs.
set(PKV_GPU_RIG tests/gpu/rig.c tests/gpu/card.c)
set(PKV_GPU_SOURCES_gather tests/gpu/gather.c ${PKV_GPU_RIG})
set(PKV_GPU_SOURCES_speeds tests/gpu/speeds.c ${PKV_GPU_RIG})
set(PKV_GPU_SOURCES_device tests/gpu/test_device.c tests/gpu/card.c)
set(PKV_GPU_SOURCES_device_edges tests/edge/test_device_edges.c tests/gpu/card_edges.c tests/gpu/card.c
    tests/gpu/no_blas.c)
set(PKV_GPU_SOURCES_tier_edges tests/edge/test_tier_edges.c tests/gpu/card_edges.c tests/gpu/card.c
    tests/gpu/no_blas.c)
set(PKV_GPU_PROGRAMS gather speeds device device_edges tier_edges)
set(PKV_GPU_LINK -Wl,--wrap=pkvi_cuda_blas_open) # of the edges
if(NOT PKV_HAVE_CUDA)
    return()
endif()
add_custom_target(gpu_programs DEPENDS pivotkv)
file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/kernel/test_*.c)
foreach(source ${sources})
    get_filename_component(op ${source} NAME_WE)
    string(REGEX REPLACE "^test_" "" op ${op})
    if(NOT EXISTS ${PROJECT_SOURCE_DIR}/kernels/cuda/${op}.cu)
        continue()
    endif()
    set(program gpu_kernel_${op})
    pkv_add_test_program(${program} ${source} tests/support/kernel_test.c tests/support/kv_case.c
        tests/support/hot_case.c tests/support/cuda_variant.c)
    target_include_directories(${program} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    # Memory of pkvt_alloc() is the card's too: free() must know.
    target_compile_definitions(${program} PRIVATE PKV_TEST_CUDA=1 PKV_TEST_CARD=1 free=pkvt_cuda_free)
    pkv_add_test(gpu ${source} ${program})
    add_dependencies(gpu_programs ${program})
endforeach()

add_library(gpu_card_kernels OBJECT tests/gpu/card_kernels.cu)
target_include_directories(gpu_card_kernels PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_compile_options(gpu_card_kernels PRIVATE --threads 2 -Werror all-warnings
    -Xcompiler -fno-exceptions,-fno-rtti)
foreach(name ${PKV_GPU_PROGRAMS})
    set(program gpu_${name})
    pkv_add_test_program(${program} ${PKV_GPU_SOURCES_${name}} $<TARGET_OBJECTS:gpu_card_kernels>)
    target_include_directories(${program} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    target_compile_definitions(${program} PRIVATE PKV_HAVE_CUDA=1 PKV_TEST_CARD=1)
    set_target_properties(${program} PROPERTIES LINKER_LANGUAGE C)
    if(name MATCHES "edges$")
        target_link_options(${program} PRIVATE ${PKV_GPU_LINK})
    endif()
    if(NOT name MATCHES "gather|speeds")
        list(GET PKV_GPU_SOURCES_${name} 0 source)
        pkv_add_test(gpu ${PROJECT_SOURCE_DIR}/${source} ${program})
    endif()
    add_dependencies(gpu_programs ${program})
endforeach()
