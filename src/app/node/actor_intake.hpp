#pragma once

#include "core/request/request_intake.hpp"
#include "core/request/stream_sink.hpp"
#include "messages/actor_directory.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace rankwise::app {

/// A front's way to the RequestManagers of the node, with a cap on what is under way to each. A request belongs to the
/// manager that its rid is hashed to, so that a rid in flight is known as such and an abort by rid finds it.
class actor_intake final : public core::request_intake {
 public:
  using info_source = std::function<core::node_info()>;
  using load_source = std::function<std::vector<core::rank_load>()>;

  /// `submissions_max`: submissions on their way to one manager at most; beyond it a request is refused.
  actor_intake(std::shared_ptr<actor_directory> directory, std::uint32_t submissions_max, info_source info,
               load_source loads)
      : directory_(std::move(directory)), submissions_max_(submissions_max), info_(std::move(info)),
        loads_(std::move(loads)) {}

  /// Where refusals go; before the first submit().
  void sink(core::stream_sink* sink) { sink_ = sink; }

  core::owner_id submit(core::stream_id stream, core::request_ptr request) noexcept override;
  void cancel(core::stream_id stream, core::owner_id owner, core::failure why) noexcept override;
  void abort(std::string rid) noexcept override;

  [[nodiscard]] core::node_info info() const override { return info_(); }
  [[nodiscard]] std::vector<core::rank_load> loads() const override { return loads_(); }

 private:
  std::shared_ptr<actor_directory> directory_;
  std::uint32_t submissions_max_;
  info_source info_;
  load_source loads_;
  core::stream_sink* sink_ = nullptr;
};

} // namespace rankwise::app
