// SPDX-License-Identifier: Apache-2.0
// out[1, 128] = p[1, 8192] @ v[8192, 128]. On the 2 x 16 grid axis 0 splits the columns and axis 1 the depth; the sixteen
// partial sums of each column half meet on the first tile of their group.

#p = affine_set<(d0, d1) : (d0 == 0, d1 >= 0, -d1 + 8191 >= 0)>
#v = affine_set<(d0, d1) : (d0 >= 0, -d0 + 8191 >= 0, d1 >= 0, -d1 + 127 >= 0)>
#o = affine_set<(d0, d1) : (d0 == 0, d1 >= 0, -d1 + 127 >= 0)>
#pt = affine_set<(d0, d1) : (d0 == 0, d1 >= 0, -d1 + 511 >= 0)>
#vt = affine_set<(d0, d1) : (d0 >= 0, -d0 + 511 >= 0, d1 >= 0, -d1 + 63 >= 0)>
#ot = affine_set<(d0, d1) : (d0 == 0, d1 >= 0, -d1 + 63 >= 0)>
#order = affine_map<(d0, d1) -> (d0, d1)>
#groups = affine_set<(g) : (g >= 0, -g + 1 >= 0)>
#members = affine_set<(i)[g] : ((i - g) mod 2 == 0, i >= 0)>
#first = affine_set<(i)[g] : (i - g == 0)>

func.func @ksplit(%p: index, %v: index, %out: index) attributes {grid = [2, 16]} {
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %c512 = arith.constant 512 : index
  %column, %slice = ktdp.get_compute_tile_id : index, index
  %n = arith.muli %column, %c64 : index
  %k = arith.muli %slice, %c512 : index
  %P = ktdp.construct_memory_view %p, sizes: [1, 8192], strides: [8192, 1] {coordinate_set = #p, memory_space = #ktdp.memory_space<global>} : memref<1x8192xf16>
  %V = ktdp.construct_memory_view %v, sizes: [8192, 128], strides: [128, 1] {coordinate_set = #v, memory_space = #ktdp.memory_space<global>} : memref<8192x128xf16>
  %O = ktdp.construct_memory_view %out, sizes: [1, 128], strides: [128, 1] {coordinate_set = #o, memory_space = #ktdp.memory_space<global>} : memref<1x128xf16>
  %pt = ktdp.construct_access_tile %P[%c0, %k] {access_tile_set = #pt, access_tile_order = #order} : memref<1x8192xf16> -> <1x512xindex>
  %vt = ktdp.construct_access_tile %V[%k, %n] {access_tile_set = #vt, access_tile_order = #order} : memref<8192x128xf16> -> <512x64xindex>
  %x = ktdp.load %pt : <1x512xindex> -> tensor<1x512xf16>
  %w = ktdp.load %vt : <512x64xindex> -> tensor<512x64xf16>
  %zero = arith.constant dense<0.0> : tensor<1x64xf32>
  %part = linalg.matmul ins(%x, %w : tensor<1x512xf16>, tensor<512x64xf16>) outs(%zero : tensor<1x64xf32>) -> tensor<1x64xf32>
  %f = ktdp.inter_tile_produce producer_tiles_per_group = #members -> <(tensor<1x64xf32>), groups = #groups> {
  ^bb0(%g: index):
    ktdp.yield_partial %part : tensor<1x64xf32>
  }
  %sum = ktdp.inter_tile_reduce(%f) consumer_tiles_per_group = #first, identity(%zero : tensor<1x64xf32>)
      : <(tensor<1x64xf32>), groups = #groups> -> tensor<1x64xf32> {
  ^bb0(%l: tensor<1x64xf32>, %r: tensor<1x64xf32>):
    %t = arith.addf %l, %r : tensor<1x64xf32>
    ktdp.yield_reduced %t : tensor<1x64xf32>
  }
  %is_first = arith.cmpi eq, %slice, %c0 : index
  scf.if %is_first {
    %half = arith.truncf %sum : tensor<1x64xf32> to tensor<1x64xf16>
    %ot = ktdp.construct_access_tile %O[%c0, %n] {access_tile_set = #ot, access_tile_order = #order} : memref<1x128xf16> -> <1x64xindex>
    ktdp.store %half, %ot : tensor<1x64xf16>, <1x64xindex>
  }
  return
}
