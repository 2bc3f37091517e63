#pragma once

#include "core/base/ids.hpp"
#include "io/zmq/engine_hub.hpp"

#include <tl/expected.hpp>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// What a node must know to serve running ranks again after its process was replaced: they never register twice.
namespace rankwise::app {

struct node_state {
  core::node_boot boot = 0; ///< of the process that wrote it
  std::vector<io::rank_record> ranks;
  std::set<std::pair<std::string, std::uint16_t>> drained; ///< pool and rank, by an operator's wish
};

/// JSON with a version and a CRC-32 of its contents. nullopt: there is none. Error: what is wrong with it.
[[nodiscard]] tl::expected<std::optional<node_state>, std::string> read_state(const std::string& path);

/// Replaces the file in one step: a crash leaves the old or the new one. Error: what failed.
[[nodiscard]] tl::expected<void, std::string> write_state(const std::string& path, const node_state& state);

/// Keeps `node.state` of one folder up to date, on a thread of its own: no socket ever waits for the disk. Only one
/// process can have a folder.
class state_keeper {
 public:
  /// Reads what an earlier process left and writes the new boot. Throws std::runtime_error when another process has the
  /// folder, or when it cannot be written.
  explicit state_keeper(const std::string& folder);
  /// Writes what is not written.
  ~state_keeper();
  state_keeper(const state_keeper&) = delete;
  state_keeper& operator=(const state_keeper&) = delete;

  /// As it was found; `boot` is already this process's own.
  [[nodiscard]] const node_state& found() const noexcept { return found_; }
  /// Not empty: the file that was found is of no use, and why.
  [[nodiscard]] const std::string& damage() const noexcept { return damage_; }
  /// There was no file.
  [[nodiscard]] bool is_first_start() const noexcept { return first_start_; }

  void set_ranks(std::vector<io::rank_record> ranks);
  void set_drained(const std::string& pool, std::uint16_t rank, bool drained);

 private:
  void run();

  std::string path_;
  int lock_ = -1;
  node_state found_;
  std::string damage_;
  bool first_start_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  node_state state_;
  bool dirty_ = false;
  bool stopping_ = false;
  bool failed_ = false; ///< the last write; tried again every second
  std::thread thread_;
};

} // namespace rankwise::app
