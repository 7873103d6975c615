# SPDX-License-Identifier: Apache-2.0
# Source this file: it tells the build of torch-spyre where this SDK is, and programs where its libraries are.
_spyre_sdk=$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")" && pwd)

# What the build looks for.
export RUNTIME_INSTALL_DIR=$_spyre_sdk SENLIB_INSTALL_DIR=$_spyre_sdk DEEPTOOLS_INSTALL_DIR=$_spyre_sdk
export SPYRE_COMMS_INSTALL_DIR=$_spyre_sdk LIBAIUPTI_INSTALL_DIR=$_spyre_sdk SEN_COMMON_HEADERS=$_spyre_sdk/include
export CMAKE_INCLUDE_PATH=$_spyre_sdk/include${CMAKE_INCLUDE_PATH:+:$CMAKE_INCLUDE_PATH}
export CMAKE_LIBRARY_PATH=$_spyre_sdk/lib${CMAKE_LIBRARY_PATH:+:$CMAKE_LIBRARY_PATH}
export USE_SPYRE_CCL=${USE_SPYRE_CCL:-1} USE_SPYRE_PROFILER=${USE_SPYRE_PROFILER:-1}
export NEW_SYSTEM_SETUP=${NEW_SYSTEM_SETUP:-0} TORCH_SPYRE_DEBUG=${TORCH_SPYRE_DEBUG:-0}
# To build without a network, put nlohmann/json 3.11.2 here, as nlohmann/include/nlohmann/json.hpp.
export SHARED_DEPS_DIR=${SHARED_DEPS_DIR:-$_spyre_sdk/deps}

# What programs look for.
export LD_LIBRARY_PATH=$_spyre_sdk/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PATH=$_spyre_sdk/bin:$PATH
unset _spyre_sdk
