#include "io/zmq/peer_filter.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <stdexcept>

namespace rankwise::io {

peer_filter::peer_filter(zmq::context_t& context, const std::vector<std::string>& allowed,
                         std::atomic<std::uint64_t>& refused)
    : refused_(refused), requests_(context, zmq::socket_type::rep) {
  for (const auto& text : allowed) {
    const auto block = address_block::parse(text);
    if (!block)
      throw std::invalid_argument("allowed_peers: \"" + text + "\" is neither an address nor a block like 10.0.0.0/8");
    allowed_.push_back(*block);
  }
  requests_.set(zmq::sockopt::linger, 0);
  requests_.set(zmq::sockopt::rcvtimeo, 200);
  requests_.bind("inproc://zeromq.zap.01");
  thread_ = std::thread{[this] { run(); }};
}

peer_filter::~peer_filter() {
  running_ = false;
  thread_.join();
}

bool peer_filter::allows(const std::string& address) const {
  return address.empty() ||
         std::any_of(allowed_.begin(), allowed_.end(), [&](const auto& block) { return block.contains(address); });
}

void peer_filter::run() {
  while (running_) {
    // version, request id, domain, address, identity, mechanism, credentials
    std::vector<std::string> parts;
    zmq::message_t part;
    do {
      if (!requests_.recv(part))
        break;
      if (parts.size() < 16)
        parts.push_back(part.to_string());
    } while (part.more());
    if (parts.empty())
      continue;
    const bool wellformed = parts.size() >= 6;
    const bool allowed = wellformed && allows(parts[3]);
    if (!allowed) {
      ++refused_;
      spdlog::warn("event=peer_refused address={}", wellformed ? parts[3] : "?");
    }
    const std::string id = parts.size() > 1 ? parts[1] : "";
    const std::array<std::string, 6> answer{"1.0", id, allowed ? "200" : "400", allowed ? "OK" : "not an allowed peer",
                                            "",    ""};
    for (std::size_t i = 0; i < answer.size(); ++i)
      requests_.send(zmq::buffer(answer[i]), i + 1 < answer.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
}

} // namespace rankwise::io
