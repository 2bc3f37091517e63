#include "app/node/state_file.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>
#include <zlib.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace rankwise::app {

namespace {

using json = nlohmann::json;

constexpr int state_version = 1;

std::uint32_t checksum(const std::string& text) {
  return static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const unsigned char*>(text.data()), text.size()));
}

json to_json(const io::rank_record& r) {
  const auto& e = r.registration;
  return {{"pool", r.pool},
          {"rank", e.rank.rank},
          {"epoch", e.epoch},
          {"identity", std::vector<std::uint8_t>(r.identity.begin(), r.identity.end())},
          {"input_address", r.input_address},
          {"output_address", r.output_address},
          {"kv_capacity", e.kv_capacity},
          {"max_running", e.max_running},
          {"chunk_tokens", e.chunk_tokens},
          {"data_parallel_size", e.data_parallel_size},
          {"max_model_len", e.max_model_len},
          {"engine_version", e.engine_version},
          {"layouts", e.layouts},
          {"model_name", e.model_name},
          {"data_parallel_rank", e.data_parallel_rank}};
}

io::rank_record record_of(const json& j) {
  io::rank_record r;
  r.pool = j.at("pool").get<std::string>();
  for (const auto& byte : j.at("identity"))
    r.identity.push_back(static_cast<char>(byte.get<std::uint8_t>()));
  r.input_address = j.at("input_address").get<std::string>();
  r.output_address = j.at("output_address").get<std::string>();
  auto& e = r.registration;
  e.kind = link_event_kind::restored;
  e.rank.rank = j.at("rank").get<std::uint16_t>();
  e.epoch = j.at("epoch").get<core::rank_epoch>();
  e.kv_capacity = j.at("kv_capacity").get<std::uint64_t>();
  e.max_running = j.at("max_running").get<std::uint32_t>();
  e.chunk_tokens = j.at("chunk_tokens").get<std::uint64_t>();
  e.data_parallel_size = j.at("data_parallel_size").get<std::uint32_t>();
  e.max_model_len = j.at("max_model_len").get<std::uint64_t>();
  e.engine_version = j.at("engine_version").get<std::string>();
  e.layouts = j.at("layouts").get<decltype(e.layouts)>();
  e.model_name = j.value("model_name", ""); // files of before have none
  e.data_parallel_rank = j.value("data_parallel_rank", std::uint32_t{e.rank.rank});
  return r;
}

std::string failure(const char* what, const std::string& path) {
  return fmt::format("cannot {} {}: {}", what, path, std::strerror(errno));
}

class file {
 public:
  file(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~file() {
    if (fd_ >= 0)
      ::close(fd_);
  }
  file(const file&) = delete;
  file& operator=(const file&) = delete;
  [[nodiscard]] int fd() const noexcept { return fd_; }

 private:
  int fd_;
};

bool write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const auto n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

/// What an engine said of itself may be no UTF-8: such bytes are replaced, a state file is JSON.
std::string text_of(const json& j, int indent = -1) {
  return j.dump(indent, ' ', false, json::error_handler_t::replace);
}

} // namespace

tl::expected<std::optional<node_state>, std::string> read_state(const std::string& path) {
  if (std::error_code error; !std::filesystem::exists(path, error) && !error)
    return std::optional<node_state>{};
  std::ifstream in{path};
  if (!in)
    return tl::unexpected{failure("read", path)};
  std::stringstream text;
  text << in.rdbuf();
  try {
    const auto j = json::parse(text.str());
    if (const auto version = j.at("version").get<int>(); version != state_version)
      return tl::unexpected{fmt::format("{}: version: {}, this program reads {}", path, version, state_version)};
    const auto& state = j.at("state");
    if (checksum(state.dump()) != j.at("crc32").get<std::uint32_t>())
      return tl::unexpected{path + ": crc32: does not match the contents"};
    node_state result;
    result.boot = state.at("boot").get<core::node_boot>();
    for (const auto& rank : state.at("ranks"))
      result.ranks.push_back(record_of(rank));
    for (const auto& entry : state.at("drained"))
      result.drained.emplace(entry.at("pool").get<std::string>(), entry.at("rank").get<std::uint16_t>());
    return std::optional{std::move(result)};
  } catch (const json::exception& e) {
    return tl::unexpected{path + ": " + e.what()};
  }
}

tl::expected<void, std::string> write_state(const std::string& path, const node_state& state) {
  json contents{{"boot", state.boot}, {"ranks", json::array()}, {"drained", json::array()}};
  for (const auto& rank : state.ranks)
    contents["ranks"].push_back(to_json(rank));
  for (const auto& [pool, rank] : state.drained)
    contents["drained"].push_back({{"pool", pool}, {"rank", rank}});
  const auto crc = checksum(text_of(contents));
  const json whole{{"version", state_version}, {"crc32", crc}, {"state", std::move(contents)}};
  const auto fresh = path + ".new";
  {
    const file out{fresh, O_WRONLY | O_CREAT | O_TRUNC};
    if (out.fd() < 0 || !write_all(out.fd(), text_of(whole, 1) + "\n") || ::fsync(out.fd()) != 0)
      return tl::unexpected{failure("write", fresh)};
  }
  if (::rename(fresh.c_str(), path.c_str()) != 0)
    return tl::unexpected{failure("rename", fresh)};
  const file folder{path.substr(0, path.rfind('/')), O_RDONLY | O_DIRECTORY};
  if (folder.fd() < 0 || ::fsync(folder.fd()) != 0)
    return tl::unexpected{failure("sync the folder of", path)};
  return {};
}

state_keeper::state_keeper(const std::string& folder) : path_(folder + "/node.state") {
  const auto lock_path = folder + "/lock";
  lock_ = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0)
    throw std::runtime_error("state_dir: " + failure("open", lock_path));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    throw std::runtime_error("state_dir: " + folder + " belongs to another running node");
  }
  auto found = read_state(path_);
  if (!found)
    damage_ = found.error();
  else if (*found)
    found_ = std::move(**found);
  else
    first_start_ = true;
  // Without a predecessor it begins anywhere: what an engine still runs for a node whose file was lost is foreign then.
  found_.boot = found_.boot == 0 ? std::random_device{}() % 1'000'000 + 1 : found_.boot + 1;
  state_ = found_;
  if (const auto written = write_state(path_, state_); !written) {
    ::close(lock_);
    throw std::runtime_error("state_dir: " + written.error());
  }
  thread_ = std::thread{[this] { run(); }};
}

state_keeper::~state_keeper() {
  {
    const std::lock_guard guard{mutex_};
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  ::close(lock_);
}

void state_keeper::set_ranks(std::vector<io::rank_record> ranks) {
  {
    const std::lock_guard guard{mutex_};
    state_.ranks = std::move(ranks);
    dirty_ = true;
  }
  changed_.notify_all();
}

void state_keeper::set_drained(const std::string& pool, std::uint16_t rank, bool drained) {
  {
    const std::lock_guard guard{mutex_};
    if (drained)
      state_.drained.emplace(pool, rank);
    else
      state_.drained.erase({pool, rank});
    dirty_ = true;
  }
  changed_.notify_all();
}

void state_keeper::run() {
  constexpr auto retry_every = std::chrono::seconds{1};
  std::unique_lock lock{mutex_};
  for (;;) {
    changed_.wait(lock, [this] { return dirty_ || stopping_; });
    if (!dirty_)
      return;
    dirty_ = false;
    const auto copy = state_;
    lock.unlock();
    const auto written = write_state(path_, copy);
    lock.lock();
    if (written) {
      if (std::exchange(failed_, false))
        spdlog::info("event=state_written");
      continue;
    }
    if (!std::exchange(failed_, true))
      spdlog::error("event=state_not_written cause={:?} consequence=\"a restart would not have the newest ranks back\"",
                    written.error());
    if (stopping_)
      return;
    dirty_ = true;
    changed_.wait_for(lock, retry_every, [this] { return stopping_; });
  }
}

} // namespace rankwise::app
