#pragma once

#include <charconv>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

/// The admin HTTP server: cpp-httplib behind a small face, so that its header stays in one file.
namespace rankwise::io {

struct http_answer {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
};

struct http_query {
  std::map<std::string, std::string> parameters;
  std::string path_rest;      ///< what the first group of the path's pattern matched
  std::string peer;           ///< its address
  bool from_loopback = false; ///< itself: not a page of another site, nor somebody behind a proxy
  std::string bearer_token;   ///< of the Authorization header; empty: none

  [[nodiscard]] std::string get(const std::string& name, const std::string& otherwise = {}) const {
    const auto found = parameters.find(name);
    return found == parameters.end() ? otherwise : found->second;
  }
  /// `otherwise` where it is not given; nullopt: it is no number that a Number can hold.
  template <class Number>
  [[nodiscard]] std::optional<Number> number(const std::string& name, Number otherwise) const {
    const auto found = parameters.find(name);
    if (found == parameters.end())
      return otherwise;
    Number value{};
    const auto& text = found->second;
    const auto end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, value);
    if (text.empty() || parsed.ec != std::errc{} || parsed.ptr != end)
      return std::nullopt;
    return value;
  }
};

using http_handler = std::function<http_answer(const http_query&)>;

class admin_server {
 public:
  /// `address`: host:port, port 0 = any. Throws std::runtime_error naming the address when it cannot be bound.
  explicit admin_server(const std::string& address);
  ~admin_server();
  admin_server(const admin_server&) = delete;
  admin_server& operator=(const admin_server&) = delete;

  /// Before start(). A path may be a regular expression with one group. Handlers run on the server's own threads and
  /// may block for as long as their own deadlines say.
  void get(const std::string& path, http_handler handler);
  void post(const std::string& path, http_handler handler);

  void start();
  void stop() noexcept;
  /// host:port with the real port.
  [[nodiscard]] const std::string& address() const noexcept;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

/// GET or POST against an admin server. Status 0: no connection; `body` then says why. `timeout_s` bounds the whole
/// call.
[[nodiscard]] http_answer http_get(const std::string& address, const std::string& path, int timeout_s = 5);
[[nodiscard]] http_answer http_post(const std::string& address, const std::string& path, int timeout_s = 5,
                                    const std::string& bearer_token = {});

} // namespace rankwise::io
