# rankwise_library(NAME SOURCES...): a static library of ours, warnings as errors, headers found from the root and src/.
add_library(rankwise_warnings INTERFACE)
target_compile_options(rankwise_warnings INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Werror)
target_include_directories(rankwise_warnings INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 reports reads of uninitialised memory inside CAF's inlined deserialiser that no path can reach.
  target_compile_options(rankwise_warnings INTERFACE -Wno-error=maybe-uninitialized)
endif()

function(rankwise_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PRIVATE rankwise_warnings)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
endfunction()

# What runs under the sanitisers too: `scripts/build dev unit_and_actor_tests`, then ctest with those labels.
add_custom_target(unit_and_actor_tests)

# rankwise_test(NAME SOURCES... LIBS libraries...): a GoogleTest program, each case registered with ctest.
function(rankwise_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE rankwise_warnings ${arg_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  # Tests of real processes keep deadlines of the real clock: they run alone.
  set(serial OFF)
  if("process" IN_LIST arg_LABELS)
    set(serial ON)
  endif()
  if("unit" IN_LIST arg_LABELS OR "actors" IN_LIST arg_LABELS)
    add_dependencies(unit_and_actor_tests ${name})
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT ${arg_TIMEOUT} RUN_SERIAL ${serial} LABELS "${arg_LABELS}")
endfunction()
