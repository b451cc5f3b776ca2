# CMake's module of this name, which fetches nothing here: what a kernel's build has is a stand-in, and the rest an
# empty folder and a note.
macro(FetchContent_Declare)
endmacro()

macro(FetchContent_GetProperties kci_name)
  string(TOLOWER "${kci_name}" kci_lower)
  get_property(${kci_lower}_POPULATED GLOBAL PROPERTY KCI_FETCHED_${kci_lower})
  set(${kci_lower}_SOURCE_DIR ${CMAKE_BINARY_DIR}/_deps/${kci_lower}-src)
  set(${kci_lower}_BINARY_DIR ${CMAKE_BINARY_DIR}/_deps/${kci_lower}-build)
endmacro()

macro(FetchContent_Populate kci_name)
  string(TOLOWER "${kci_name}" kci_lower)
  set_property(GLOBAL PROPERTY KCI_FETCHED_${kci_lower} TRUE)
  FetchContent_GetProperties(${kci_name})
  file(WRITE ${${kci_lower}_SOURCE_DIR}/CMakeLists.txt "")
  if("${kci_lower}" MATCHES "^(pybind11|nanobind)$")
    find_package(${kci_lower})
  elseif(NOT "${kci_lower}" MATCHES "^(googletest|gtest|catch2|benchmark)$")
    message(WARNING "kci: it fetches ${kci_name}: put what it needs of that into the project")
  endif()
endmacro()

macro(FetchContent_MakeAvailable)
  foreach(kci_name IN ITEMS ${ARGN})
    FetchContent_Populate(${kci_name})
  endforeach()
endmacro()
