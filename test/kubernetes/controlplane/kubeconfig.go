package controlplane

import (
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig makes a kubeconfig with a new client certificate, with which the
// API server at server (https://ADDRESS:PORT) knows the holder as user, member
// of groups. Members of system:masters may do everything.
func (p *PKI) Kubeconfig(server, user string, groups ...string) ([]byte, error) {
	cert, key, err := p.Issue(Certificate{User: user, Groups: groups})
	if err != nil {
		return nil, err
	}
	const cluster = "kubernetes"
	c := clientcmdapi.NewConfig()
	c.Clusters[cluster] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: p.CA()}
	c.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	c.Contexts[cluster] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: user}
	c.CurrentContext = cluster
	b, err := clientcmd.Write(*c)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", user, err)
	}
	return b, nil
}
