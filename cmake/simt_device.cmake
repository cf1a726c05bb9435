# Tests of the cuda device as a whole over the fake runtime (tests/simt), label simt.
if(NOT TARGET simt_engine_plain)
    return()
endif()
# Calls that wait or allocate are counted by tests/simt/cuda_device.c.
set(PKV_SIMT_COUNTED cudaStreamSynchronize cudaEventSynchronize cudaDeviceSynchronize cudaMalloc cudaFree
    cudaHostAlloc cudaFreeHost)
list(TRANSFORM PKV_SIMT_COUNTED PREPEND -Wl,--wrap=)

# Without nvcc the library has no cuda device: these programs bring it.
file(GLOB PKV_CUDA_DEVICE_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/runtime/device/dev_cuda.c
    ${PROJECT_SOURCE_DIR}/runtime/device/cuda_*.c)
set(PKV_SIMT_PRODUCT $<TARGET_OBJECTS:simt_kernels_plain>)
if(NOT PKV_HAVE_CUDA)
    add_library(simt_host OBJECT runtime/device/device.c ${PKV_CUDA_DEVICE_SOURCES})
    pkv_simt_defaults(simt_host plain)
    target_compile_definitions(simt_host PRIVATE PKV_HAVE_CUDA=1 PKV_BUILDING)
    list(APPEND PKV_SIMT_PRODUCT $<TARGET_OBJECTS:simt_host>)
endif()

# The device's own tests: no kernel of the product in them.
pkv_add_simt_program(simt_device plain tests/simt/test_device.c tests/simt/cuda_device.c
    ${PKV_SIMT_PRODUCT})
target_link_options(simt_device PRIVATE ${PKV_SIMT_COUNTED})
pkv_add_simt_test(simt.device $<TARGET_FILE:simt_device> in_order:0)
# Once more with the device's own files under ASan and UBSan.
pkv_add_simt_program(simt_device_asan asan tests/simt/test_device.c tests/simt/cuda_device.c
    ${PKV_CUDA_DEVICE_SOURCES} runtime/device/device.c $<TARGET_OBJECTS:simt_kernels_asan>)
target_compile_definitions(simt_device_asan PRIVATE PKV_HAVE_CUDA=1)
target_link_options(simt_device_asan PRIVATE ${PKV_SIMT_COUNTED})
pkv_add_simt_test(simt.device_asan $<TARGET_FILE:simt_device_asan> in_order:0)

# Edges between streams, of the device and of the tier. In the tier's the operations of COMPUTE are the
# CPU kernels as host functions of its stream: hundreds of runs in seconds.
pkv_add_simt_program(simt_device_edges plain tests/edge/test_device_edges.c tests/simt/cuda_device.c
    ${PKV_SIMT_PRODUCT})
target_link_options(simt_device_edges PRIVATE ${PKV_SIMT_COUNTED})
pkv_add_simt_test(simt.device_edges $<TARGET_FILE:simt_device_edges> in_order:0)
pkv_add_simt_program(simt_tier_edges plain tests/edge/test_tier_edges.c tests/simt/cuda_device.c
    tests/simt/host_kernels.c ${PKV_SIMT_PRODUCT})
target_link_options(simt_tier_edges PRIVATE ${PKV_SIMT_COUNTED} -Wl,--wrap=pkvi_cuda_kernel)
pkv_add_simt_test(simt.tier_edges $<TARGET_FILE:simt_tier_edges> in_order:0)
# The tier's once more, smaller, with the CUDA kernels themselves.
pkv_add_simt_program(simt_cuda_edges plain tests/edge/test_tier_edges.c tests/simt/cuda_device.c
    $<TARGET_OBJECTS:simt_kernels_plain>)
target_compile_definitions(simt_cuda_edges PRIVATE PKVT_SIMT_KERNELS=1)
target_link_options(simt_cuda_edges PRIVATE ${PKV_SIMT_COUNTED})
pkv_add_simt_test(simt.cuda_edges $<TARGET_FILE:simt_cuda_edges> mixed:1)

# The whole product: tiny models against the CPU device; a real one by hand or with the label long.
pkv_add_simt_program(simt_product plain tests/simt/test_product.c tests/simt/cuda_device.c
    ${PKV_SIMT_PRODUCT})
target_link_options(simt_product PRIVATE ${PKV_SIMT_COUNTED})
pkv_add_simt_test(simt.product $<TARGET_FILE:simt_product> in_order:0)
# Rehearsal and recall by CUDA kernels, all else by the CPU's.
pkv_add_simt_program(simt_product_recall plain tests/simt/test_product.c tests/simt/cuda_device.c
    tests/simt/host_kernels.c ${PKV_SIMT_PRODUCT})
target_compile_definitions(simt_product_recall PRIVATE PKVT_HOST_REST=1)
target_compile_options(simt_product_recall PRIVATE -Wno-unused-function) # models that it leaves out
target_link_options(simt_product_recall PRIVATE ${PKV_SIMT_COUNTED} -Wl,--wrap=pkvi_cuda_kernel)
pkv_add_simt_test(simt.product_recall $<TARGET_FILE:simt_product_recall> in_order:0)
math(EXPR timeout "${PKV_TEST_TIMEOUT} * 6")
# Fewer of them in the builds that look at every access, with the device's own files under ASan.
foreach(build asan check)
    pkv_add_simt_program(simt_product_${build} ${build} tests/simt/test_product.c
        tests/simt/cuda_device.c ${PKV_CUDA_DEVICE_SOURCES} runtime/device/device.c
        $<TARGET_OBJECTS:simt_kernels_${build}>)
    target_compile_definitions(simt_product_${build} PRIVATE PKV_HAVE_CUDA=1 PKVT_FEW=1)
    target_link_options(simt_product_${build} PRIVATE ${PKV_SIMT_COUNTED})
    pkv_add_simt_test(simt.product_${build} $<TARGET_FILE:simt_product_${build}> mixed:1)
    set_tests_properties(simt.product_${build} PROPERTIES TIMEOUT ${timeout})
endforeach()
add_test(NAME simt.smollm2 COMMAND simt_product smollm2)
set_tests_properties(simt.smollm2 PROPERTIES LABELS "simt;long" TIMEOUT ${timeout} SKIP_RETURN_CODE 77
    ENVIRONMENT "${PKV_TEST_ENVIRONMENT}")

# The command itself with --device cuda.
if(PKV_CLI_SOURCES AND Python3_FOUND)
    pkv_add_simt_program(pivotkv_simt plain ${PKV_CLI_SOURCES} ${PKV_SIMT_PRODUCT})
    target_link_libraries(pivotkv_simt PRIVATE PkgConfig::EDIT)
    add_test(NAME simt.cli COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/simt/cli.py
        $<TARGET_FILE:pivotkv_simt>)
    set_tests_properties(simt.cli PROPERTIES LABELS simt TIMEOUT ${PKV_TEST_TIMEOUT}
        ENVIRONMENT "${PKV_TEST_ENVIRONMENT}")
endif()

# The programs for a card over the fake runtime, and tests/gpu/run_all with them, every stage in tiny sizes.
if(PKV_CLI_SOURCES AND Python3_FOUND)
    set(kernels ${PROJECT_BINARY_DIR}/simt/card_kernels.cpp)
    file(CONFIGURE OUTPUT ${kernels} CONTENT "#include \"tests/gpu/card_kernels.cu\"\n")
    set(programs $<TARGET_FILE:pivotkv_simt> $<TARGET_FILE:simt_softcap_plain> $<TARGET_FILE:simt_glu_plain>)
    foreach(name ${PKV_GPU_PROGRAMS})
        pkv_add_simt_program(simt_gpu_${name} plain ${PKV_GPU_SOURCES_${name}} ${kernels}
            ${PKV_SIMT_PRODUCT})
        target_compile_definitions(simt_gpu_${name} PRIVATE PKV_HAVE_CUDA=1)
        target_compile_options(simt_gpu_${name} PRIVATE -Wno-unknown-pragmas)
        if(name MATCHES "edges$")
            target_link_options(simt_gpu_${name} PRIVATE ${PKV_GPU_LINK})
        endif()
        if(name STREQUAL tier_edges) # K and V of hundreds of runs are the CPU kernels' work
            target_sources(simt_gpu_${name} PRIVATE tests/simt/host_kernels.c)
            target_link_options(simt_gpu_${name} PRIVATE -Wl,--wrap=pkvi_cuda_kernel)
        endif()
        list(APPEND programs $<TARGET_FILE:simt_gpu_${name}>)
    endforeach()
    add_test(NAME simt.run_all COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/simt/run_all.py ${programs})
    set_tests_properties(simt.run_all PROPERTIES LABELS simt TIMEOUT ${PKV_TEST_TIMEOUT}
        ENVIRONMENT "${PKV_TEST_ENVIRONMENT}")
endif()
