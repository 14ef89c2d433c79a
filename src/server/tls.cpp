#include "server/tls.h"

#include "base/error.h"

namespace eyrie::server {

namespace ssl = boost::asio::ssl;

std::unique_ptr<ssl::context> make_tls_context(const TlsConfig& tls) {
  if (tls.cert_file.empty() && tls.key_file.empty()) return nullptr;
  if (tls.cert_file.empty() || tls.key_file.empty()) {
    fail("--ssl-certfile is '{}' and --ssl-keyfile is '{}'; TLS takes both", tls.cert_file,
         tls.key_file);
  }
  auto context = std::make_unique<ssl::context>(ssl::context::tls_server);
  context->set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 |
                       ssl::context::no_sslv3 | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
  boost::system::error_code error;
  context->use_certificate_chain_file(tls.cert_file, error);
  if (error) fail("--ssl-certfile {}: {}", tls.cert_file, error.message());
  context->use_private_key_file(tls.key_file, ssl::context::pem, error);
  if (error) fail("--ssl-keyfile {}: {}", tls.key_file, error.message());
  if (!tls.ca_file.empty()) {
    context->load_verify_file(tls.ca_file, error);
    if (error) fail("--ssl-ca-certs {}: {}", tls.ca_file, error.message());
  }
  if (tls.client_certs != ClientCerts::kNone) {
    if (tls.ca_file.empty()) {
      fail("--ssl-cert-reqs asks for client certificates; --ssl-ca-certs must say who signs them");
    }
    ssl::verify_mode mode = ssl::verify_peer;
    if (tls.client_certs == ClientCerts::kRequired) mode |= ssl::verify_fail_if_no_peer_cert;
    context->set_verify_mode(mode);
  }
  if (!tls.ciphers.empty() &&
      SSL_CTX_set_cipher_list(context->native_handle(), tls.ciphers.c_str()) != 1) {
    fail("--ssl-ciphers '{}': OpenSSL knows no such cipher", tls.ciphers);
  }
  return context;
}

}  // namespace eyrie::server
