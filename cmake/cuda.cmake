# CUDA is optional: without a toolkit nothing of it is built; with one its parts always compile.
# The host side (kernels/cuda/*.c, runtime/device/{dev_cuda,cuda_*}.c) is plain C against cudart's
# headers. cudart is linked statically, cuBLAS is opened when a device is: a program that was built
# with CUDA starts as fast on a machine without a driver.
set(PKV_HAVE_CUDA OFF)
set(PKV_CUDA_OBJECTS)
file(GLOB PKV_CUDA_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
file(GLOB PKV_CUDA_HOST_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.c
    ${PROJECT_SOURCE_DIR}/runtime/device/dev_cuda.c ${PROJECT_SOURCE_DIR}/runtime/device/cuda_*.c)
if(PKV_CUDA AND NOT PKV_SANITIZE)
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
        set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90-real 100-real 120 CACHE STRING "")
        set(CMAKE_CUDA_STANDARD 17)
        set(CMAKE_CUDA_STANDARD_REQUIRED ON)
        enable_language(CUDA)
        find_package(CUDAToolkit)
    endif()
    if(CUDAToolkit_FOUND AND TARGET CUDA::cudart_static)
        set(PKV_HAVE_CUDA ON)
        add_library(pivotkv_cuda_host OBJECT ${PKV_CUDA_HOST_SOURCES})
        pkv_target_defaults(pivotkv_cuda_host)
        target_include_directories(pivotkv_cuda_host SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
        target_compile_definitions(pivotkv_cuda_host PRIVATE PKV_BUILDING PKV_HAVE_CUDA=1)
        set(PKV_CUDA_OBJECTS $<TARGET_OBJECTS:pivotkv_cuda_host>)
        if(PKV_CUDA_SOURCES)
            add_library(pivotkv_cuda OBJECT ${PKV_CUDA_SOURCES})
            target_include_directories(pivotkv_cuda PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
            target_compile_options(pivotkv_cuda PRIVATE
                $<$<COMPILE_LANGUAGE:CUDA>:--threads 2 -Werror all-warnings
                    -Xcompiler -fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics>)
            # One object in place of many: who links the library needs no CUDA language.
            set(PKV_CUDA_KERNELS ${PROJECT_BINARY_DIR}/cuda_kernels.o)
            add_custom_command(OUTPUT ${PKV_CUDA_KERNELS}
                COMMAND ${CMAKE_LINKER} -r -o ${PKV_CUDA_KERNELS} $<TARGET_OBJECTS:pivotkv_cuda>
                DEPENDS pivotkv_cuda $<TARGET_OBJECTS:pivotkv_cuda> COMMAND_EXPAND_LISTS VERBATIM)
            set_source_files_properties(${PKV_CUDA_KERNELS} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
            list(APPEND PKV_CUDA_OBJECTS ${PKV_CUDA_KERNELS})
        endif()
        target_compile_definitions(pivotkv_objects PRIVATE PKV_HAVE_CUDA=1)
        # Of C++, .cu files use the language alone: libstdc++ is not linked.
        list(APPEND PKV_LINK CUDA::cudart_static ${CMAKE_DL_LIBS})
    endif()
endif()
set(why)
if(NOT PKV_CUDA)
    set(why " (PKV_CUDA=OFF)")
elseif(PKV_SANITIZE)
    set(why " (sanitizers)")
elseif(NOT CMAKE_CUDA_COMPILER)
    set(why " (no nvcc that works: in PATH, or named by CUDACXX or CMAKE_CUDA_COMPILER)")
elseif(NOT PKV_HAVE_CUDA)
    set(why " (nvcc without a toolkit beside it: no static cudart)")
endif()
message(STATUS "CUDA parts: ${PKV_HAVE_CUDA}${why}")
