#include "io/grpc/message_reader.hpp"

#include <algorithm>

namespace rankwise::io::grpc {

message_reader::state message_reader::feed(std::string_view& in) {
  while (prefix_size_ < message_prefix_bytes) {
    if (in.empty()) {
      return state::need_more;
    }
    prefix_[prefix_size_++] = static_cast<unsigned char>(in.front());
    in.remove_prefix(1);
    if (prefix_size_ < message_prefix_bytes) {
      continue;
    }
    announced_ = static_cast<std::uint32_t>(prefix_[1]) << 24 | static_cast<std::uint32_t>(prefix_[2]) << 16 |
                 static_cast<std::uint32_t>(prefix_[3]) << 8 | static_cast<std::uint32_t>(prefix_[4]);
    if (prefix_[0] > 1) {
      return state::bad_flag;
    }
    if (announced_ > message_bytes_max_) {
      return state::too_large;
    }
    if (prefix_[0] == 1) {
      return state::compressed;
    }
    body_.reserve(std::min<std::size_t>(announced_, reserve_bytes_max));
  }
  const auto take = std::min<std::size_t>(in.size(), announced_ - body_.size());
  body_.append(in.substr(0, take));
  in.remove_prefix(take);
  complete_ = body_.size() == announced_;
  return complete_ ? state::message : state::need_more;
}

void message_reader::next() noexcept {
  std::string{}.swap(body_);
  prefix_size_ = 0;
  announced_ = 0;
  complete_ = false;
}

} // namespace rankwise::io::grpc
