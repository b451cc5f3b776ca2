# A toolchain that compiles nothing: CMake asks no compiler what it is, and tries none.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
foreach(kci_language IN ITEMS C CXX CUDA)
  set(CMAKE_${kci_language}_COMPILER_FORCED 1)
  set(CMAKE_${kci_language}_COMPILER_ID_RUN 1)
  set(CMAKE_${kci_language}_COMPILER_ID GNU)
  set(CMAKE_${kci_language}_COMPILER_VERSION 13.2.0)
  set(CMAKE_${kci_language}_PLATFORM_ID Linux)
  set(CMAKE_${kci_language}_STANDARD_COMPUTED_DEFAULT 17)
  set(CMAKE_${kci_language}_FLAGS_RELEASE "" CACHE STRING "")
  get_property(CMAKE_${kci_language}_COMPILE_FEATURES GLOBAL PROPERTY CMAKE_${kci_language}_KNOWN_FEATURES)
endforeach()
set(CMAKE_C_COMPILER ${CMAKE_CURRENT_LIST_DIR}/bin/cc)
set(CMAKE_CXX_COMPILER ${CMAKE_CURRENT_LIST_DIR}/bin/c++)
if("$ENV{KCI_BACKEND}" STREQUAL "cuda")
  set(CMAKE_CUDA_COMPILER ${CMAKE_CURRENT_LIST_DIR}/cuda/nvcc)
  set(CMAKE_CUDA_COMPILER_ID NVIDIA)
  set(CMAKE_CUDA_COMPILER_VERSION $ENV{KCI_CUDA}.88)
  set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "")
  # CMake takes the folders of the toolkit from what nvcc prints; so this is in the words of nvcc.
  string(CONCAT CMAKE_CUDA_COMPILER_PRODUCED_OUTPUT
    "#$ PATH=/usr/local/cuda/bin:/usr/bin\n" "#$ LIBRARIES=  \"-L/usr/local/cuda/lib64\"\n"
    "#$ INCLUDES=\"-I/usr/local/cuda/include\"\n" "#$ gcc -o a.out \"-L/usr/local/cuda/lib64\" -lcudart_static\n")
else()
  set(CMAKE_CUDA_COMPILER CMAKE_CUDA_COMPILER-NOTFOUND)
  set(ENV{CUDACXX} ${CMAKE_CURRENT_LIST_DIR}/none)  # whatever compiler this machine has
endif()
