#pragma once

#include "messages/dp_rank.hpp"

#include <string>

namespace rankwise::io {

/// What a restarted node has to know of a rank that kept running, to serve it again without a handshake. The hub tells
/// its records by `engine_hub_callbacks::on_records`; a later process hands them to `engine_hub::restore`.
struct rank_record {
  std::string pool;           ///< The name of the rank's pool.
  std::string identity;       ///< The ZeroMQ identity under which the rank connects.
  std::string input_address;  ///< Where the rank connects to receive requests.
  std::string output_address; ///< Where the rank connects to send outputs.
  link_event registration;    ///< The rank's last registration: rank, epoch, capacity and layouts.
};

} // namespace rankwise::io
